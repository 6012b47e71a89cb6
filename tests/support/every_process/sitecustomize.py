"""Imported by every Python whose PYTHONPATH names this folder."""

import pretended_card

pretended_card.pretend_once_torch_is_there()
