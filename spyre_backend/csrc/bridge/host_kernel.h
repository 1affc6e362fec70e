// Any operator of the CPU, executed on device memory.
#pragma once

#include "bridge/allocator.h"
#include "bridge/host_view.h"
#include "bridge/runtime.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <vector>

namespace spyre::bridge {

// Keys above the device: for a call that has arrived at a kernel they are done.
inline constexpr c10::DispatchKeySet kAboveDevice =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

// Runs `call(views)` on the current stream of a device, after everything submitted before, where host kernels
// allocate device memory. For kernels written by hand against host views.
template <class Call> void on_host_views(c10::DeviceIndex device, Call&& call) {
  compute_on(device, [&] {
    const HostKernelScope born_on_device(device);
    const c10::impl::ExcludeDispatchKeyGuard below(kAboveDevice);
    HostViews views(device);
    call(views);
  });
}

// Whether an operator takes random numbers, from a generator that it is given or from the device's own.
bool draws_random(const c10::OperatorHandle& op);

// What a call of one operator needs to know about its schema; computed once.
class HostKernelPlan {
public:
  explicit HostKernelPlan(const c10::OperatorHandle& op);

  // How tensors of the CPU may appear among the arguments.
  enum class HostTensors {
    Scalars, // zero-dimensional ones only, never written: what other devices allow
    Indices, // of any size in the list of indices
  };

  std::vector<bool> written; // per argument: the schema says it is mutated
  std::vector<int> returned; // per result: the written argument it is, or -1
  int generator = -1;        // the argument of type Generator?
  int device = -1;           // the argument of type Device?
  bool draws = false;        // random, but takes no generator
  HostTensors host_tensors = HostTensors::Scalars;
};

// Runs the CPU kernel of `op` on the current stream's device memory, after everything submitted before, and
// leaves device tensors on the stack. Throws what the kernel throws, and a RuntimeError for tensors of
// several devices.
void run_host_kernel(const HostKernelPlan& plan, const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace spyre::bridge
