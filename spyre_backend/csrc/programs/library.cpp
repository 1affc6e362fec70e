#include "programs/library.h"

#include "card/error.h"

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace spyre::programs {
namespace {

// A file in memory with this content. The loader knows libraries by path, so the descriptor stays open: its
// number, which is the path, belongs to this content for good.
int in_memory(std::span<const std::byte> content) {
  const int file = memfd_create("spyre-kernels", MFD_CLOEXEC);
  std::size_t at = 0;
  while (file >= 0 && at < content.size()) {
    const ssize_t written = write(file, content.data() + at, content.size() - at);
    if (written < 0 && errno != EINTR)
      break;
    at += written < 0 ? 0 : static_cast<std::size_t>(written);
  }
  if (file < 0 || at < content.size()) {
    const std::string reason = std::strerror(errno);
    if (file >= 0)
      close(file);
    throw card::InvalidArgument("the kernels can't be loaded: " + reason);
  }
  return file;
}

} // namespace

std::shared_ptr<const Library> Library::load(std::span<const std::byte> content, const std::string& digest) {
  static std::mutex mutex;
  static auto* loaded = new std::map<std::string, std::shared_ptr<const Library>>;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const Library>& library = (*loaded)[digest];
  if (library == nullptr)
    library = std::shared_ptr<const Library>(new Library(content));
  return library;
}

Library::Library(std::span<const std::byte> content) {
  const int file = in_memory(content);
  handle_ = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const std::string reason = dlerror();
    close(file);
    throw card::InvalidArgument("the kernels can't be loaded: " + reason);
  }
}

KernelFunction Library::find(const std::string& name) const {
  void* symbol = dlsym(handle_, name.c_str());
  if (symbol == nullptr)
    throw card::InvalidArgument("there is no kernel '" + name + "' in the program's library");
  return reinterpret_cast<KernelFunction>(symbol);
}

} // namespace spyre::programs
