// Pinned host memory.
#pragma once

namespace at {
struct HostAllocator;
}

namespace spyre::bridge {

// True when the address lies in memory that the host allocator handed out and that is still in use.
bool is_pinned(const void* address);

at::HostAllocator& host_allocator();

} // namespace spyre::bridge
