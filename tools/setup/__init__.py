"""Set up the virtual environment of the goals of make: announce, check the room, install, go on after a stop.

Only the standard library is used, because nothing is installed yet when this starts.
"""
