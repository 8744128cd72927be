"""Tensors in named shared memory: segments, the allocator over them, the owner's store and the reader.

A leaf: standard library only, Python 3.9, imports nothing of ours. A segment is written by the process that made it;
others read it by handle (segment, offset, nbytes), and only the owner frees. Nothing read from a segment is trusted.
"""
