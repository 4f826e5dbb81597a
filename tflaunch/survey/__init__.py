"""Questions to hosts without a run: `gpus`, `check`, `init`."""
