"""Notebooks read, run, cut, compared and built."""

import sys

# nbformat imports jsonschema, which where it finds this package builds a grammar of web addresses: two seconds for every
# process that reads a notebook, and no notebook has an address to be checked. None makes its import fail, which is foreseen there.
if "jsonschema" not in sys.modules:
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # as the documentation of sys.modules says
    import nbformat  # noqa: F401

    if sys.modules["rfc3987_syntax"] is None:
        del sys.modules["rfc3987_syntax"]
