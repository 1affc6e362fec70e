#include "programs/library.h"

#include "card/error.h"

#include <dlfcn.h>

namespace spyre::programs {

Library::Library(const std::string& path)
    : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr)
    throw card::InvalidArgument("the kernels can't be loaded: " + std::string(dlerror()));
}

KernelFunction Library::find(const std::string& name) const {
  void* symbol = dlsym(handle_, name.c_str());
  if (symbol == nullptr)
    throw card::InvalidArgument("there is no kernel '" + name + "' in " + path_);
  return reinterpret_cast<KernelFunction>(symbol);
}

} // namespace spyre::programs
