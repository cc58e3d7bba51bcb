#include "kernels.h"

namespace headrace {

namespace portable {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512_bf16 {
extern const Kernels kKernels;
}

namespace {
// The compiler's feature test also asks whether the operating system saves the wide registers.
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
bool HasAvx512Bf16() { return HasAvx512() && __builtin_cpu_supports("avx512bf16"); }
}  // namespace
#endif

const Kernels* KernelsNamed(std::string_view name) {
  if (name == "portable") return &portable::kKernels;
#if defined(__x86_64__)
  if (name == "avx2" && HasAvx2()) return &avx2::kKernels;
  if (name == "avx512" && HasAvx512()) return &avx512::kKernels;
  if (name == "avx512_bf16" && HasAvx512Bf16()) return &avx512_bf16::kKernels;
#endif
  return nullptr;
}

const Kernels& BestKernels() {
  for (const char* name : {"avx512_bf16", "avx512", "avx2"}) {
    if (const Kernels* kernels = KernelsNamed(name)) return *kernels;
  }
  return portable::kKernels;
}

}  // namespace headrace
