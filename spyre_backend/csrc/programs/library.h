// Compiled kernels that programs call.
#pragma once

#include <cstdint>
#include <string>

namespace spyre::programs {

// A kernel gets the addresses of its operands and its numbers.
using KernelFunction = void (*)(void** pointers, const std::int64_t* numbers);

// A shared library of kernels. It stays loaded: threads that ran its code may still hold its thread-locals.
class Library {
public:
  // Throws InvalidArgument when the file can't be loaded; the text has the loader's reason.
  explicit Library(const std::string& path);

  // Throws InvalidArgument for a name that the library does not export.
  KernelFunction find(const std::string& name) const;

private:
  std::string path_;
  void* handle_;
};

} // namespace spyre::programs
