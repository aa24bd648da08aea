"""fmctl. A command per file, each a thin shell over fmclient.Client; what is heavy is imported inside the commands that use it."""
