"""Every theorem, lemma and erratum of the papers as a claim, computed afresh: ``joma check``.

A module here mirrors one of ``joma.theory`` and offers ``CHECKS``: group name (``theorem2``,
``lemma4``) -> function without arguments that returns the group's claims, whose ids begin with the
group's name. Groups appear in ``joma check`` in the order of ``MODULES`` and of ``CHECKS``.
"""
