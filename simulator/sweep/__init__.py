"""Many points: grids of scenarios over processes or a cluster, resumable."""
