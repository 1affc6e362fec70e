// Device tensors as host kernels see them, and results on their way back. Nothing is copied.
#pragma once

#include "bridge/runtime.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

namespace spyre::bridge {

// Throws for a tensor with elements whose storage has no memory: nothing may follow its address. Also asked
// about tensors of the host, whose own kernels don't look.
void check_has_memory(const c10::TensorImpl& tensor);

// The host views of one operator call. Lives inside Queue::compute, so nothing else changes the memory
// meanwhile.
//
// A device storage has one twin: a CPU storage over the same bytes. Tensors that share a storage share the
// twin, so that in-place operators, overlap checks and views behave as on one storage. After the call,
// `settle` carries over to the device tensor what the kernel did to a view it may write: other sizes, a grown
// storage, another storage.
class HostViews {
public:
  explicit HostViews(c10::DeviceIndex device) : device_(device) {}

  // A CPU tensor over the memory of a strided device tensor: same sizes, strides, offset, dtype, conjugate
  // and negative bits.
  at::Tensor view(const at::Tensor& tensor);
  // Carries changes of `view` (which came from view(tensor)) over to `tensor`.
  void settle(const at::Tensor& view, const at::Tensor& tensor);
  // The device tensor for a tensor that a host kernel returned: the input itself when it is the view of one,
  // a view of an input's storage, the same tensor moved over when it was born on the device, or a copy.
  at::Tensor result(at::Tensor tensor);

private:
  struct Pair {
    c10::StorageImpl* device;
    c10::intrusive_ptr<c10::StorageImpl> host;
    const void* address; // of the host side when the call began
  };

  c10::intrusive_ptr<c10::StorageImpl> twin(c10::StorageImpl& storage);
  // The device storage for a storage that a host kernel left in a tensor.
  c10::Storage device_storage(const c10::Storage& storage);
  // Moves the memory that a kernel gave to a twin over to the device storage.
  void settle_storage(const Pair& pair);

  const c10::DeviceIndex device_;
  c10::SmallVector<Pair, 6> pairs_;
};

} // namespace spyre::bridge
