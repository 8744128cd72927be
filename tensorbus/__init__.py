"""The command: settings, logging and the services put together. Imports all, nobody imports it."""
