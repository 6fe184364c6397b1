"""The MPI transport and the MPI process group."""
