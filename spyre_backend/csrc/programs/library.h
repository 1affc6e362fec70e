// Compiled kernels that programs call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace spyre::programs {

// A kernel gets the addresses of its operands and its numbers.
using KernelFunction = void (*)(void** pointers, const std::int64_t* numbers);

// A shared library of kernels. It stays loaded: threads that ran its code may still hold its thread-locals.
class Library {
public:
  // The library with this content, loaded once per process. The content is what is loaded, whatever happens
  // to the file it was read from; `digest` tells contents apart. Throws InvalidArgument when it can't be
  // loaded; the text has the loader's reason.
  static std::shared_ptr<const Library> load(std::span<const std::byte> content, const std::string& digest);

  // Throws InvalidArgument for a name that the library does not export.
  KernelFunction find(const std::string& name) const;

private:
  explicit Library(std::span<const std::byte> content);

  void* handle_;
};

} // namespace spyre::programs
