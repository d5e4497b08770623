//===- ConstantBuilder.h - C structs as LLVM constants --------------------===//
#ifndef MGQ_COMPILER_DRIVER_CONSTANTBUILDER_H
#define MGQ_COMPILER_DRIVER_CONSTANTBUILDER_H

#include "llvm/ADT/StringMap.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/DerivedTypes.h"
#include "llvm/IR/GlobalVariable.h"
#include "llvm/IR/Module.h"

namespace mgq {

/// Makes constants whose layout is that of C structs of int32_t, int64_t,
/// double and pointers: an LLVM struct that is not packed aligns its members as
/// C does.
class ConstantBuilder {
public:
  using Fields = llvm::ArrayRef<llvm::Constant *>;

  explicit ConstantBuilder(llvm::Module &module) : module(module) {}

  llvm::Constant *i32(int64_t value) {
    return llvm::ConstantInt::getSigned(
        llvm::Type::getInt32Ty(module.getContext()), value);
  }
  llvm::Constant *i64(int64_t value) {
    return llvm::ConstantInt::getSigned(
        llvm::Type::getInt64Ty(module.getContext()), value);
  }
  llvm::Constant *f64(double value) {
    return llvm::ConstantFP::get(llvm::Type::getDoubleTy(module.getContext()),
                                 value);
  }
  llvm::Constant *null() { return llvm::ConstantPointerNull::get(pointer()); }
  llvm::Constant *record(Fields fields) {
    return llvm::ConstantStruct::getAnon(module.getContext(), fields);
  }
  /// Pointer to a constant array, and its length: two fields of a struct.
  struct Table {
    llvm::Constant *data;
    llvm::Constant *count;
  };
  Table table(Fields elements) {
    return {array(elements), i32(int64_t(elements.size()))};
  }
  /// Pointer to a constant array; null if it is empty.
  llvm::Constant *array(Fields elements) {
    if (elements.empty())
      return null();
    auto *type =
        llvm::ArrayType::get(elements.front()->getType(), elements.size());
    return global(llvm::ConstantArray::get(type, elements));
  }
  llvm::Constant *array(llvm::ArrayRef<int64_t> values) {
    llvm::SmallVector<llvm::Constant *> elements;
    for (int64_t value : values)
      elements.push_back(i64(value));
    return array(elements);
  }
  /// Pointer to a string with its zero; equal strings are one.
  llvm::Constant *string(llvm::StringRef text) {
    llvm::Constant *&entry = strings[text];
    if (!entry)
      entry =
          global(llvm::ConstantDataArray::getString(module.getContext(), text));
    return entry;
  }
  /// A function defined in another object.
  llvm::Constant *function(llvm::StringRef name) {
    auto *type = llvm::FunctionType::get(
        llvm::Type::getVoidTy(module.getContext()), /*isVarArg=*/false);
    return llvm::cast<llvm::Constant>(
        module.getOrInsertFunction(name, type).getCallee());
  }

private:
  llvm::PointerType *pointer() {
    return llvm::PointerType::getUnqual(module.getContext());
  }
  llvm::Constant *global(llvm::Constant *value) {
    return new llvm::GlobalVariable(module, value->getType(),
                                    /*isConstant=*/true,
                                    llvm::GlobalValue::PrivateLinkage, value);
  }

  llvm::Module &module;
  llvm::StringMap<llvm::Constant *> strings;
};

} // namespace mgq

#endif // MGQ_COMPILER_DRIVER_CONSTANTBUILDER_H
