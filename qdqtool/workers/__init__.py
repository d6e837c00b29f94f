"""Work in this process, in processes of this machine, on a Dask cluster."""
