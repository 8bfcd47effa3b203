"""GPUs, engines and models as data: what a file says, checked, and what follows from it."""
