// Attention on CPUs with AVX-512: dense and block-sparse (dense.h), and over the best k keys, found
// by a scan in 8 bits (topk.h) or by projections (dci.h). Called from methods/kernels/__init__.py.

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

enum Feature { BASE = 1, BF16 = 2, VNNI = 4 };

// Outside the target region: it must run on any x86-64 CPU.
extern "C" int features() {
  int found = 0;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma"))
    found |= BASE;
  if (__builtin_cpu_supports("avx512bf16")) found |= BF16;
  if (__builtin_cpu_supports("avx512vnni")) found |= VNNI;
  return found;
}

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,fma,bmi2,popcnt,lzcnt")
#include "dci.h"
#include "dense.h"
#include "topk.h"

extern "C" void dense_float32(const Dense* o) { dense<Float>(*o); }
extern "C" void dense_bfloat16(const Dense* o) { dense<Bfloat>(*o); }
#pragma GCC pop_options
