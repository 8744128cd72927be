"""Runs one model instance in the model's own interpreter; ``launcher`` (ours alone) starts and reaps such processes.

Inside a stub process this package is ``_tensorbus_app.stub``, so that no top-level name is taken from the user.
It imports itself relatively, and protocol and shm through ``shared`` alone.
"""
