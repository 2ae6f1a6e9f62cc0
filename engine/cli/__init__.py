"""The command line: one module a command, each with `add(commands)` and `run(args) -> exit code`."""
