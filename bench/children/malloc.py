"""How a memory child's allocator is set: freed pages go back to the kernel at once, or an earlier
peak hides the next one (glibc; other allocators ignore it)."""

MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
}
