"""What was seen of oracles and known mistakes: each is asked once, not once for each answer that is compared with it."""

CACHE: dict = {}
