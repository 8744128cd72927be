"""The broker: model repository, configuration, registry of instances and every scheduler. Never touches a tensor."""
