"""The command `servecast`."""
