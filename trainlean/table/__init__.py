"""The published table, repeatable: its rows, predicted, measured and shown."""
