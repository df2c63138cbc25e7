BLOCK = 64
KERNELS = ("torch", "native")
def check(name, value, accepted):
    if value not in accepted: raise ValueError(name)
def note(method, reason): method.__dict__["kernel_used"] = "native" if reason is None else f"torch ({reason})"
def topk(*a): return "no"
