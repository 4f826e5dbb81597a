"""Pure: layouts, rounds, rates and predictions."""
