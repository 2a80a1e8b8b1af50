/* Selects the kernels that this machine supports. */
#include "simd/kernels.h"
#include "whamming.h"

extern const struct kernels kernels_portable;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#elif defined(__aarch64__)
extern const struct kernels kernels_neon;
#endif

const struct kernels *kernels_for(int level) {
    switch (level) {
    case WH_PORTABLE:
        return &kernels_portable;
#if defined(__x86_64__)
    case WH_AVX2:
        return __builtin_cpu_supports("avx2") ? &kernels_avx2 : NULL;
    case WH_AVX512:
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
                       __builtin_cpu_supports("gfni")
                   ? &kernels_avx512
                   : NULL;
#elif defined(__aarch64__)
    case WH_NEON:
        return &kernels_neon; /* every AArch64 machine has NEON */
#endif
    default:
        return NULL;
    }
}

int wh_simd_available(int level) { return kernels_for(level) != NULL; }

int wh_simd_level(void) {
    for (int level = WH_AVX512; level > WH_PORTABLE; level--)
        if (wh_simd_available(level)) return level;
    return WH_PORTABLE;
}
