"""The course as pages that need neither a kernel nor a network: lessons, map, glossary, exercises, guide and API."""
