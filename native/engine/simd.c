/* Which of the sweep's kernels this machine runs. */
#include "sweep.h"

extern const struct sweep_kernels sweep_portable;
#if defined(__x86_64__)
extern const struct sweep_kernels sweep_avx2, sweep_avx512;
#elif defined(__aarch64__)
extern const struct sweep_kernels sweep_neon;
#endif

const struct sweep_kernels *sweep_kernels_for(int level) {
    switch (level) {
    case WH_PORTABLE:
        return &sweep_portable;
#if defined(__x86_64__)
    case WH_AVX2:
        return __builtin_cpu_supports("avx2") ? &sweep_avx2 : NULL;
    case WH_AVX512:
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512vbmi")
                   ? &sweep_avx512
                   : NULL;
#elif defined(__aarch64__)
    case WH_NEON:
        return &sweep_neon; /* part of every AArch64 machine */
#endif
    default:
        return NULL;
    }
}

int wh_simd_available(int level) { return sweep_kernels_for(level) != NULL; }

int wh_simd_level(void) {
    for (int level = WH_AVX512; level > WH_PORTABLE; level--)
        if (wh_simd_available(level)) return level;
    return WH_PORTABLE;
}
