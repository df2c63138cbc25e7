"""How a memory child's allocators are set: freed pages go back to the kernel at once, or an earlier
peak hides the next one (glibc; other allocators ignore it), and Python's tables fill alike in each
process, or two equal cells differ by some pages."""

MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
    "PYTHONHASHSEED": "0",
}
