//===- Weights.cpp - Parameters in their files ----------------------------===//

#include "runtime/src/common/Weights.h"
#include "runtime/src/common/Error.h"
#include <cstring>
#include <unistd.h>

using namespace mgq::rt;

/// Copies what the program wants in the arena.
static void copyToArena(const mgq_param &param, const std::byte *data,
                        Arena &arena) {
  int64_t count = elementCount(shapeOf(param.stored)).value_or(-1);
  if (count < 0 || param.stored.bytes != count * typeBytes(param.stored.type))
    fail("the program's tables are damaged: shape of parameter '{}'",
         param.name);
  if (!param.trainable) {
    if (param.value_offset >= 0 && param.stored.bytes)
      memcpy(arena.at(param.value_offset), data, param.stored.bytes);
    return;
  }
  if (!isFloat(param.stored.type))
    fail("the program's tables are damaged: trainable parameter '{}' has type "
         "{}",
         param.name, typeName(param.stored.type));
  convertToFloat(param.stored.type, data, arena.floatsAt(param.value_offset),
                 count);
  for (int64_t offset :
       {param.grad_offset, param.momentum_offset, param.variance_offset})
    memset(arena.at(offset), 0, count * sizeof(float));
}

Weights::Weights(const mgq_program &program, const std::string &folder,
                 Arena &arena) {
  std::string home = folder.empty() ? folderOf(program.model_path) : folder;
  for (int32_t i = 0; i < program.param_count; ++i) {
    const mgq_param &param = program.params[i];
    std::string path = home + "/" + param.file;
    std::unique_ptr<MappedFile> &file = files[path];
    if (!file) {
      if (access(path.c_str(), F_OK))
        fail("cannot find '{}', which holds parameter '{}'; --weights DIR says "
             "where the weights are now",
             path, param.name);
      file = std::make_unique<MappedFile>(path);
    }
    if (param.file_offset < 0 || param.stored.bytes < 0 ||
        param.file_offset > file->size() - param.stored.bytes)
      fail("'{}' is too short: parameter '{}' is at bytes {} to {}, the file "
           "has {}",
           path, param.name, param.file_offset,
           param.file_offset + param.stored.bytes, file->size());
    pointers.push_back(file->data() + param.file_offset);
    copyToArena(param, pointers.back(), arena);
  }
}
