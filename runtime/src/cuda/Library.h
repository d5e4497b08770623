//===- Library.h - Libraries found at run time ------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_LIBRARY_H
#define MGQ_RUNTIME_CUDA_LIBRARY_H

#include <string>

namespace mgq::rt {

/// Where a library is found, and what a user does who has none.
struct LibraryPlace {
  const char *name;   ///< "libcublasLt.so.13"
  const char *wheel;  ///< Its folder in site-packages; null: no wheel has it.
  const char *advice; ///< "pip install nvidia-cublas installs it"
};

/// A shared library, which stays loaded. Looked for where the system does, then
/// in $CUDA_HOME/lib64 (else /usr/local/cuda/lib64), then in the wheels of
/// $VIRTUAL_ENV, $CONDA_PREFIX, $HOME/.local, /usr/local and /usr.
class Library {
public:
  /// Throws Error that says where it has looked, and the advice.
  explicit Library(const LibraryPlace &place);

  /// The function `symbol`. Throws Error: the library is too old.
  template <typename Function>
  void find(Function *&function, const char *symbol) const {
    function = reinterpret_cast<Function *>(findSymbol(symbol));
  }

private:
  void *findSymbol(const char *symbol) const;

  LibraryPlace place;
  void *handle = nullptr;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_LIBRARY_H
