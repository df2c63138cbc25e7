// Products of bfloat16 numbers by AMX: 16 rows by up to 64 columns at once, in tiles of 1 KiB.

#pragma once
#include "common.h"

#if !defined(PORTABLE_BYTES) && defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define TILES
#include <sys/syscall.h>
#include <unistd.h>

// Linux gives the tiles to processes that ask for them (arch_prctl's ARCH_REQ_XCOMP_PERM, XTILEDATA).
static bool tiles_allowed() {
  static const bool allowed = !syscall(SYS_arch_prctl, 0x1023, 18);
  return allowed;
}

// The tiles of a thread: all have 16 rows of 64 bytes.
struct ThreadTiles {
  ThreadTiles() {
    struct {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    _tile_loadconfig(&shape);
  }
  ~ThreadTiles() { _tile_release(); }
};

// Rows and columns as of Bfloat, in steps of 16 units.
struct Tiled : Bfloat {
  using Thread = ThreadTiles;
  static constexpr int unit = 2, rows = 16;
};
constexpr int TILE_UNITS = 16;

// See `product`. Tiles 0 to 3 have the sums, 4 the rows, 5 and 6 columns by turns.
template <int C, bool ADD>
INLINE void tiled_product(const void* rows, int64_t row_stride, const Piece* pieces, int count,
                          int64_t piece_stride, int64_t column_stride, void* sums, int64_t sum_stride) {
  auto sum = (char*)sums;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if constexpr (ADD) {
    _tile_loadd(0, sum, sum_stride);
    if constexpr (C > 1) _tile_loadd(1, sum + 64, sum_stride);
    if constexpr (C > 2) _tile_loadd(2, sum + 128, sum_stride);
    if constexpr (C > 3) _tile_loadd(3, sum + 192, sum_stride);
  }
  for (int piece = 0; piece < count; piece++) {
    auto row = (const char*)rows + piece * piece_stride;
    auto column = (const char*)pieces[piece].columns;
    for (int64_t step = 0; step < pieces[piece].steps; step += TILE_UNITS) {
      _tile_loadd(4, row + step * 4, row_stride);
      _tile_loadd(5, column, column_stride);
      _tile_dpbf16ps(0, 4, 5);
      if constexpr (C > 1) {
        _tile_loadd(6, column + 64, column_stride);
        _tile_dpbf16ps(1, 4, 6);
      }
      if constexpr (C > 2) {
        _tile_loadd(5, column + 128, column_stride);
        _tile_dpbf16ps(2, 4, 5);
      }
      if constexpr (C > 3) {
        _tile_loadd(6, column + 192, column_stride);
        _tile_dpbf16ps(3, 4, 6);
      }
      column += TILE_UNITS * column_stride;
    }
  }
  _tile_stored(0, sum, sum_stride);
  if constexpr (C > 1) _tile_stored(1, sum + 64, sum_stride);
  if constexpr (C > 2) _tile_stored(2, sum + 128, sum_stride);
  if constexpr (C > 3) _tile_stored(3, sum + 192, sum_stride);
}
#endif
