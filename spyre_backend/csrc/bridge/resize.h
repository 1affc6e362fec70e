// Growing storages in place.
#pragma once

#include <c10/core/StorageImpl.h>
#include <cstddef>

namespace spyre::bridge {

// Gives a device storage exactly `nbytes`; the common prefix keeps its content. Throws if the storage is not
// resizable.
void resize_storage(c10::StorageImpl& storage, std::size_t nbytes);

} // namespace spyre::bridge
