#pragma once

namespace luna::cpu {

/// The instruction set the CPU kernels run with: "avx512", "avx2" or "scalar"
/// (the x86-64 baseline). The best one that the machine has, unless the
/// environment variable LUNA_ISA names another one.
const char* isa_name();

/// Applies LUNA_ISA. Every table of kernels calls it before it chooses.
void apply_isa_override();

}  // namespace luna::cpu
