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
  static constexpr int unit = 2, rows = 32, few = 16;
};
constexpr int TILE_UNITS = 16;

// See `product`: R is 16 or 32 rows, by two vectors of columns at a time, the first one `at` bytes from
// the pieces' begin. Tiles 0 to 3 have the sums, 4 and 5 the rows, 6 and 7 the columns.
template <int R, int C, bool ADD>
INLINE void tiled_product(const void* rows, int64_t row_stride, const Piece* pieces, int count, int64_t piece_stride,
                          int64_t column_stride, void* sums, int64_t sum_stride, int64_t at) {
  if constexpr (C > 2) {
    tiled_product<R, 2, ADD>(rows, row_stride, pieces, count, piece_stride, column_stride, sums, sum_stride, at);
    return tiled_product<R, C - 2, ADD>(rows, row_stride, pieces, count, piece_stride, column_stride, sums, sum_stride,
                                        at + 128);
  }
  constexpr bool DOWN = R > 16, RIGHT = C > 1;
  auto sum = (char*)sums + at, below = sum + 16 * sum_stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if constexpr (ADD) {
    _tile_loadd(0, sum, sum_stride);
    if constexpr (RIGHT) _tile_loadd(1, sum + 64, sum_stride);
    if constexpr (DOWN) _tile_loadd(2, below, sum_stride);
    if constexpr (DOWN && RIGHT) _tile_loadd(3, below + 64, sum_stride);
  }
  for (int piece = 0; piece < count; piece++) {
    auto row = (const char*)rows + piece * piece_stride;
    auto column = (const char*)pieces[piece].columns + at;
    for (int64_t step = 0; step < pieces[piece].steps; step += TILE_UNITS) {
      _tile_loadd(4, row, row_stride);
      _tile_loadd(6, column, column_stride);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (RIGHT) {
        _tile_loadd(7, column + 64, column_stride);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (DOWN) {
        _tile_loadd(5, row + 16 * row_stride, row_stride);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (RIGHT) _tile_dpbf16ps(3, 5, 7);
      }
      row += TILE_UNITS * 4;
      column += TILE_UNITS * column_stride;
    }
  }
  _tile_stored(0, sum, sum_stride);
  if constexpr (RIGHT) _tile_stored(1, sum + 64, sum_stride);
  if constexpr (DOWN) _tile_stored(2, below, sum_stride);
  if constexpr (DOWN && RIGHT) _tile_stored(3, below + 64, sum_stride);
}
#endif
