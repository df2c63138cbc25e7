"""Benchmarks: their rows, encodings and official metrics. One module per benchmark.

Modules import each other in this order only, lowest first:

    base        the interface of a task
    metrics     official metrics, chance level, buckets of length
    generators  seeded texts, trees and images for embedded rows
    loading     files, the hub, the base class of tasks on text, prediction files
    scrolls, zeroscrolls, lra, longeval, summaries, eli5, multihop, lm_eval
    check, template   the check of a task's contract, and new tasks

Nothing here imports `bench` or `methods`.
"""
