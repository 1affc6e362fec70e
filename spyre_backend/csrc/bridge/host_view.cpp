#include "bridge/host_view.h"

#include "bridge/allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <cstring>

namespace spyre::bridge {
namespace {

c10::Device device_at(c10::DeviceIndex index) {
  return {c10::DeviceType::PrivateUse1, index};
}

// A device storage with a copy of host bytes: for results that a kernel made in memory of its own.
c10::DataPtr copied(c10::DeviceIndex device, const void* bytes, std::size_t nbytes) {
  c10::DataPtr data = device_allocator().allocate_on(device, nbytes);
  if (nbytes != 0)
    std::memcpy(backing_of(Runtime::get(), data.get()), bytes, nbytes);
  return data;
}

} // namespace

void check_has_memory(const c10::TensorImpl& tensor) {
  TORCH_CHECK(
      tensor.numel() == 0 ||
          tensor.unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr,
      "the storage of a tensor of ", tensor.numel(),
      " elements has no memory: it was offloaded or resized to 0 bytes, and has to be restored first");
}

c10::intrusive_ptr<c10::StorageImpl> HostViews::twin(c10::StorageImpl& storage) {
  for (const Pair& pair : pairs_)
    if (pair.device == &storage)
      return pair.host;
  c10::intrusive_ptr<c10::StorageImpl> host;
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (Lease* owner = lease_of(data)) {
    host = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(owner->twin(storage.nbytes()));
  } else {
    // No lease of ours: an empty storage, or our memory under a foreign context.
    void* address = data.get() == nullptr ? nullptr : backing_of(Runtime::get(), data.get());
    host = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                 static_cast<std::int64_t>(storage.nbytes()),
                                                 c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)),
                                                 c10::GetCPUAllocator(), storage.resizable());
  }
  const void* address = host->data();
  pairs_.push_back({&storage, host, address});
  return host;
}

at::Tensor HostViews::view(const at::Tensor& tensor) {
  c10::TensorImpl* source = tensor.unsafeGetTensorImpl();
  check_has_memory(*source);
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(twin(*source->unsafe_storage().unsafeGetStorageImpl())),
      c10::DispatchKeySet(c10::DispatchKey::CPU), source->dtype());
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(source->sizes(), source->strides(), source->storage_offset());
  if (C10_UNLIKELY(source->is_conj()))
    impl->_set_conj(true);
  if (C10_UNLIKELY(source->is_neg()))
    impl->_set_neg(true);
  if (C10_UNLIKELY(source->is_wrapped_number()))
    impl->set_wrapped_number(true);
  return result;
}

void HostViews::settle_storage(const Pair& pair) {
  c10::StorageImpl& host = *pair.host;
  c10::StorageImpl& device = *pair.device;
  if (host.data() != pair.address) {
    c10::DataPtr old(nullptr, c10::Device(c10::DeviceType::CPU));
    const auto fresh = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<std::int64_t>(host.nbytes()), std::move(old),
        c10::GetCPUAllocator(), /*resizable=*/true);
    std::swap(fresh->_mutable_data_ptr_no_checks(), host._mutable_data_ptr_no_checks());
    c10::DataPtr data = adopt(*fresh, device_) ? std::move(fresh->_mutable_data_ptr_no_checks())
                                               : copied(device_, fresh->data(), fresh->nbytes());
    device.set_data_ptr_noswap(std::move(data));
  }
  if (host.nbytes() != device.nbytes())
    device.set_nbytes(host.nbytes());
}

c10::Storage HostViews::device_storage(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  for (const Pair& pair : pairs_)
    if (pair.host.get() == impl)
      return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(pair.device));
  // Already moved over: several results may share a storage.
  if (impl->device_type() == c10::DeviceType::PrivateUse1 || adopt(*impl, device_))
    return storage;
  return {c10::Storage::use_byte_size_t(), impl->nbytes(), copied(device_, impl->data(), impl->nbytes()),
          &device_allocator(), /*resizable=*/true};
}

void HostViews::settle(const at::Tensor& view, const at::Tensor& tensor) {
  c10::TensorImpl* from = view.unsafeGetTensorImpl();
  c10::TensorImpl* to = tensor.unsafeGetTensorImpl();
  c10::StorageImpl* storage = to->unsafe_storage().unsafeGetStorageImpl();
  for (const Pair& pair : pairs_) {
    if (pair.device != storage)
      continue;
    if (C10_UNLIKELY(pair.host->data() != pair.address || pair.host->nbytes() != storage->nbytes()))
      settle_storage(pair);
    if (C10_UNLIKELY(from->unsafe_storage().unsafeGetStorageImpl() != pair.host.get()))
      to->set_storage_keep_dtype(device_storage(from->unsafe_storage()));
    break;
  }
  if (C10_UNLIKELY(from->sizes() != to->sizes() || from->strides() != to->strides() ||
                   from->storage_offset() != to->storage_offset()))
    to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
}

at::Tensor HostViews::result(at::Tensor tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu())
    return tensor;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == c10::kStrided && !tensor.is_quantized(),
      "spyre devices hold strided, unquantized tensors; this operator returns one of layout ",
      tensor.layout(), " and dtype ", tensor.scalar_type());
  c10::Storage storage = device_storage(impl->unsafe_storage());
  if (tensor.use_count() != 1) {
    // The kernel, or the caller, keeps the host tensor: the device gets a tensor of its own over the same
    // storage.
    auto other = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), impl->dtype());
    c10::TensorImpl* copy = other.unsafeGetTensorImpl();
    copy->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
    if (impl->is_conj())
      copy->_set_conj(true);
    if (impl->is_neg())
      copy->_set_neg(true);
    return other;
  }
  impl->set_storage_keep_dtype(std::move(storage));
  impl->_change_backend_component_keys(device_at(device_));
  return tensor;
}

} // namespace spyre::bridge
