"""The processes of a distributed cell, and of a lazy one."""
