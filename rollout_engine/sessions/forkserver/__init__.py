"""What runs beside and inside a server: standard library only, on the server's own interpreter (3.10 to 3.13).

Nothing of this package is imported by the host; it is started as a program (``__main__``).
"""
