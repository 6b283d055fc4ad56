"""The processes of a communicator, and what carries slots and small messages between them: MPI."""
