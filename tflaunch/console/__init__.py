"""Everything that is shown, to people or as JSON; only here is rich imported."""
