"""The documentation site: what mkdocs calls while it builds, and what the tests of the documents share with it.

`mkdocs build` reads `mkdocs.yml`, which names `website/hooks.py`. Pages written by hand are in `docs/`; the README, the
changelog, the notes for contributors and the results of the benchmarks come from where they stand in the repository;
the reference pages are made from `conf/`, the hardware files and the code.
"""
