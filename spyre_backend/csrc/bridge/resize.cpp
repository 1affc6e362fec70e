#include "bridge/resize.h"

#include "bridge/allocator.h"

#include <algorithm>
#include <c10/util/Exception.h>
#include <cstring>

namespace spyre::bridge {

void resize_storage(c10::StorageImpl& storage, std::size_t nbytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceIndex index = storage.device().index();
  c10::DataPtr data = device_allocator().allocate_on(index, nbytes);
  const std::size_t kept = std::min(nbytes, storage.nbytes());
  if (kept != 0) {
    const Runtime& runtime = Runtime::get();
    compute_on(index, [&] {
      std::memcpy(backing_of(runtime, data.get()), backing_of(runtime, storage.data()), kept);
    });
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(nbytes);
}

} // namespace spyre::bridge
