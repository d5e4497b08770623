//===- PipeDialect.cpp - Registration of the pipe dialect -----------------===//

#include "dialects/Pipe/Pipe.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mgq::pipe;

#include "dialects/Pipe/PipeDialect.cpp.inc"

#include "dialects/Pipe/PipeEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Pipe/PipeAttrs.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/Pipe/PipeTypes.cpp.inc"

void PipeDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Pipe/PipeAttrs.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialects/Pipe/PipeTypes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialects/Pipe/PipeOps.cpp.inc"
      >();
}
