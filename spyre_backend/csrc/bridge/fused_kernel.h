// Fused kernels that the compiler made, called one at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <cstdint>
#include <vector>

namespace spyre::bridge {

// What a library of fused kernels exports: addresses of the first elements, and numbers (sizes and strides).
using FusedKernel = void (*)(void** pointers, const std::int64_t* numbers);

// Runs a kernel on the current stream of a device, after everything submitted before. Tensors of other device
// types are read where they are. Throws for tensors of another spyre device, and what the kernel throws.
void run_fused_kernel(FusedKernel kernel, c10::DeviceIndex device, const std::vector<at::Tensor>& tensors,
                      const std::vector<std::int64_t>& numbers);

} // namespace spyre::bridge
