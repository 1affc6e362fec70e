// The operators a device must bring itself: factories, views, storage changes, reading a scalar.
#include "bridge/allocator.h"
#include "bridge/host_view.h"
#include "bridge/resize.h"
#include "bridge/runtime.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_unsafe_view_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace spyre::bridge {
namespace {

constexpr c10::DispatchKeySet kSpyreKey(c10::DispatchKey::PrivateUse1);

void check_factory(std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                   std::optional<bool> pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided,
                              "spyre devices hold strided tensors only, not ",
                              c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "Only dense CPU tensors can be pinned");
  TORCH_INTERNAL_ASSERT(!device || device->type() == c10::DeviceType::PrivateUse1);
}

at::Tensor filled_if_deterministic(at::Tensor tensor) {
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

at::Tensor empty_memory_format(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pinned, std::optional<c10::MemoryFormat> format) {
  check_factory(layout, device, pinned);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return filled_if_deterministic(
      at::detail::empty_generic(size, &device_allocator(), kSpyreKey, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pinned) {
  check_factory(layout, device, pinned);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return filled_if_deterministic(at::detail::empty_strided_generic(size, stride, &device_allocator(),
                                                                   kSpyreKey, c10::dtype_or_default(dtype)));
}

// Zeros without memory. Host views can't hold one: they would copy from the memory that it does not have.
at::Tensor efficient_zero_tensor(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                                 std::optional<bool> pinned) {
  check_factory(layout, device, pinned);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  at::native::ZeroTensorAllocator nothing(guard.current_device());
  return at::detail::empty_generic(size, &nothing,
                                   kSpyreKey | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

at::Tensor& set_storage_at(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                           c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data() != nullptr)
    impl->set_sizes_and_strides(size, stride);
  else
    impl->set_sizes_contiguous(size);
  if (impl->numel() != 0) {
    const std::size_t needed = at::detail::computeStorageNbytes(
        impl->sizes(), impl->strides(), impl->itemsize(), static_cast<std::size_t>(offset));
    c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (needed > storage->nbytes())
      resize_storage(*storage, needed);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_at(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl())
    return self;
  return set_storage_at(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0,
                       device_allocator().allocate_on(self.device().index(), 0), &device_allocator(), true);
  return set_storage_at(self, std::move(storage), 0, {0}, {});
}

bool is_set_to(const at::Tensor& self, const at::Tensor& source) {
  return self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() &&
         self.strides() == source.strides();
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const c10::DeviceIndex device = self.device().index();
  at::Scalar value;
  compute_on(device, [&] {
    HostViews views(device);
    value = at::native::_local_scalar_dense_cpu(views.view(self));
  });
  return value;
}

// Whether `tensor.data = source` may keep the tensor. PyTorch lets its own dense devices exchange data with
// the CPU; for others it asks (c10/core/TensorImpl.h), and `Module.to` would make new parameters if we said
// no.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& source) {
  const auto is_dense = [](c10::DispatchKeySet keys) {
    constexpr c10::DispatchKeySet backends(
        {c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit});
    return keys.has(c10::DispatchKey::Dense) && keys.has_any(backends);
  };
  return (is_dense(self.key_set()) && is_dense(source.key_set())) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(source.key_set());
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

// Copy-on-write needs a context that is the data pointer itself (c10/core/impl/COW.h); ours is the
// description of the memory.
at::Tensor lazy_clone(const at::Tensor& self) {
  return self.clone();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("_unsafe_view", TORCH_FN(at::native::_unsafe_view));
  library.impl("alias", TORCH_FN(at::native::alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("set_.source_Storage", TORCH_FN(set_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_at));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("is_set_to", TORCH_FN(is_set_to));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("_lazy_clone", TORCH_FN(lazy_clone));
}

// Nested tensors describe themselves on the host. Without these three a failing operator on one would end the
// process, because PyTorch asks for the description where it can't throw.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, library) {
  library.impl("_nested_tensor_size", TORCH_FN(at::native::_nested_tensor_size));
  library.impl("_nested_tensor_strides", TORCH_FN(at::native::_nested_tensor_strides));
  library.impl("_nested_tensor_storage_offsets", TORCH_FN(at::native::_nested_tensor_storage_offsets));
}

} // namespace
} // namespace spyre::bridge
