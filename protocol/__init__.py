"""What crosses a process boundary: messages, tensor references, the codec, datatypes and errors.

A leaf: imports nothing of ours. All but ``codec`` is standard library only and runs on Python 3.9, because
stubs import it in the model's own interpreter; ``kserve`` loads protocol buffers only when it is asked to.
"""
