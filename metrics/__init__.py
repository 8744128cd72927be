"""What is counted and how it is shown: the catalogue of families, the recorders, the Prometheus endpoint.

A leaf: imports nothing of ours.
"""
